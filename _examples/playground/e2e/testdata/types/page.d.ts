// What TypeScript cannot know about the page: which elements its selectors find, and what the
// compiled library and the tests define.

interface ParentNode {
  querySelector(selectors: string): any;
  querySelectorAll(selectors: string): NodeListOf<any>;
}
interface Document {
  getElementById(id: string): any;
}
declare class Go {
  importObject: any;
  run(instance: any): Promise<void>;
}
declare var weir: any;
declare var playground: any;
declare module "*/wasm_exec.js";
