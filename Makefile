# `make` runs all steps of .ci/run, and `make STEP` runs one step.

steps = install vet bench fuzz examples serve peers playground race test

.PHONY: all $(steps)

all:
	.ci/run

$(steps):
	.ci/run $@
