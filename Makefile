# `make check` runs all that must pass before a change is merged: .ci/run, in 15 to 20 minutes on two cores.
# `make release VERSION=v0.1.0` makes a release, and prints what to push; with DRY=-dry-run it changes nothing here.
# `make proof` runs the tests behind docs/guarantees.md, and says of each claim whether it held.
.PHONY: check release proof

check:
	.ci/run

release:
	go run -C .ci/release . -version $(VERSION) $(DRY)

proof:
	go run -C .ci/tools ./proof
