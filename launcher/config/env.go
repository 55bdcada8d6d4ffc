package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// An environ looks up a variable. The error says why a variable that can be
// found elsewhere was not found there either.
type environ func(name string) (value string, ok bool, err error)

// processEnv is the process's environment, and `go env GOROOT` where GOROOT is
// unset, as it is in most shells.
func processEnv(name string) (string, bool, error) {
	v, ok := os.LookupEnv(name)
	if name != "GOROOT" || v != "" {
		return v, ok, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", false, errors.New("and there is no go command to ask for it; set GOROOT to the folder of a Go installation")
	}
	if err != nil {
		return "", false, fmt.Errorf("and `go env GOROOT` failed (%w); set GOROOT to the folder of a Go installation", err)
	}
	v = strings.TrimSpace(string(out))
	if v == "" {
		return "", false, errors.New("and `go env GOROOT` is empty; set GOROOT to the folder of a Go installation")
	}
	return v, true, nil
}

// expand replaces ${NAME} and ${NAME:-default} in s. The default stands for a
// variable that is unset or empty, as in a shell. $${ gives a literal ${; a
// dollar sign in any other place stands for itself.
func expand(s string, env environ) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		if !found {
			b.WriteString(s)
			return b.String(), nil
		}
		if literal, ok := strings.CutSuffix(before, "$"); ok {
			b.WriteString(literal + "${")
			s = rest
			continue
		}
		b.WriteString(before)
		inner, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", errors.New("${ without }; write $${ for a literal ${")
		}
		name, def, hasDefault := strings.Cut(inner, ":-")
		if !isName(name) {
			return "", fmt.Errorf("${%s} does not name a variable; write $${ for a literal ${", inner)
		}
		value, ok, err := env(name)
		switch {
		case hasDefault && value == "":
			value = def
		case err != nil:
			return "", fmt.Errorf("environment variable %s is not set, %w", name, err)
		case !ok:
			return "", fmt.Errorf("environment variable %s is not set; set it, or write ${%s:-default}", name, name)
		}
		b.WriteString(value)
		s = after
	}
}

// escape makes expand give s back.
func escape(s string) string { return strings.ReplaceAll(s, "${", "$${") }

func isName(s string) bool {
	for i, r := range s {
		letter := r == '_' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}
