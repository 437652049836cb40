// Goes on from the page of a scene to the scene in the story, as its sender saw it.
location.replace(`./#${document.currentScript.dataset.scene}${location.search}`);
