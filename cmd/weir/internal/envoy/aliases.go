package envoy

import "github.com/goccy/go-yaml/ast"

// maxAliased is how many nodes the aliases of a file may stand for. Aliases of aliases can make
// a few lines stand for more nodes than any memory holds.
const maxAliased = 100_000

// A sizer counts the nodes for which the aliases of a file stand.
type sizer struct {
	anchors map[string]int // the sizes of the anchors so far
	aliased int
}

// tooManyAliases reports whether the aliases of a file stand for more than maxAliased nodes, or
// for themselves.
func tooManyAliases(f *ast.File) bool {
	s := sizer{anchors: map[string]int{}}
	for _, doc := range f.Docs {
		s.size(doc.Body)
	}
	return s.aliased > maxAliased
}

// size returns the number of nodes that n stands for, and adds those of aliases to s.aliased.
func (s *sizer) size(n ast.Node) int {
	size := 1
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			size += s.size(v)
		}
	case *ast.MappingValueNode:
		size += s.size(n.Key) + s.size(n.Value)
	case *ast.SequenceNode:
		for _, v := range n.Values {
			size += s.size(v)
		}
	case *ast.TagNode:
		size += s.size(n.Value)
	case *ast.AnchorNode:
		name := n.Name.GetToken().Value
		s.anchors[name] = maxAliased + 1 // an alias in its own anchor has no end
		size += s.size(n.Value)
		s.anchors[name] = size
	case *ast.AliasNode:
		size += s.anchors[n.Value.GetToken().Value]
		s.aliased = min(s.aliased+size, maxAliased+1)
	}
	return min(size, maxAliased+1)
}
