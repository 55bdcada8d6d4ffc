package main

import "github.com/gorun-dev/gorun/launcher/train"

// builtin is the training that this binary holds.
var builtin = trainer{run: train.Run, plan: train.Plan, wantsGPUs: train.WantsGPUs}
