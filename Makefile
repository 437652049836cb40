# `make` runs all steps of .ci/run, and `make STEP` runs one step, which installs nothing.
# `make release VERSION=v0.1.0` makes a release, and prints what to push; with DRY=-dry-run it changes nothing here.
# `make proof` runs the tests behind docs/guarantees.md, and says of each claim whether it held.

steps = install vet bench fuzz examples serve peers playground race test bare stranger

.PHONY: all proof release $(steps)

all:
	.ci/run

$(steps):
	.ci/run $@

release:
	go run -C tools/release . -version $(VERSION) $(DRY)

proof:
	go run -C tools ./proof
