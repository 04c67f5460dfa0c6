#!/bin/sh
# Stands for the tests of every simulated task: the simulated sandbox knows what they would say.
exit 0
