# `make` runs all steps of .ci/run, and `make STEP` runs one step, which installs nothing.

steps = install vet bench fuzz examples serve peers playground race test bare releases

.PHONY: all $(steps)

all:
	.ci/run

$(steps):
	.ci/run $@
