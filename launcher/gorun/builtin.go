package main

import (
	"context"
	"errors"

	"github.com/gorun-dev/gorun/launcher/config"
)

// builtin is the training that this binary holds.
var builtin = trainer{
	run:  func(context.Context, *config.Config) error { return errNoTraining },
	plan: func(*config.Config, int) (string, error) { return "", errNoTraining },
}

var errNoTraining = errors.New("this build of gorun holds no built-in training; it starts programs: gorun [flags] -- program")
