# `make` runs all steps of .ci/run, and `make STEP` runs one step, which installs nothing.
# `make release VERSION=v0.1.0` makes a release, and prints what to push; with DRY=-dry-run it changes nothing here.

steps = install vet bench fuzz examples serve peers playground race test bare releases stranger

.PHONY: all release $(steps)

all:
	.ci/run

$(steps):
	.ci/run $@

release:
	go run -C tools/release . -version $(VERSION) $(DRY)
