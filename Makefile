# The steps of .ci/run, one word each. `make` takes all of them.

steps = install vet bench fuzz examples serve peers playground race test

.PHONY: all $(steps)

all:
	.ci/run

$(steps):
	.ci/run $@
