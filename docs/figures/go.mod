// The pictures are a module of their own, so that they are in no user's download of Weir.
module github.com/seed83679106/weir/docs/figures

go 1.25

require github.com/seed83679106/weir v0.1.0

replace github.com/seed83679106/weir => ../..
