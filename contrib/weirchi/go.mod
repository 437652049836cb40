module github.com/seed83679106/weir/contrib/weirchi

go 1.25

// Of a release, the one it was made with; here, the tree around this directory.
require github.com/seed83679106/weir v0.1.0

replace github.com/seed83679106/weir => ../../

require github.com/go-chi/chi/v5 v5.5.0
