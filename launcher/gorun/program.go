package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
)

// lookProgram finds a program before anything is started.
func lookProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || errors.Is(err, exec.ErrDot) {
		return path, nil
	}
	info, statErr := os.Stat(name)
	switch {
	case statErr == nil && info.IsDir():
		return "", fmt.Errorf("no such program: %s is a folder", name)
	case statErr == nil && strings.HasSuffix(name, ".py"):
		return "", fmt.Errorf("no such program: %s is not executable; start it with its interpreter: gorun [flags] -- python3 %s", name, name)
	case statErr == nil && !strings.Contains(name, "/"):
		return "", fmt.Errorf("no such program: %s is not in PATH; the file in this folder is ./%s", name, name)
	case statErr == nil:
		return "", fmt.Errorf("no such program: %s is not executable (chmod +x)", name)
	case errors.Is(err, fs.ErrPermission):
		return "", fmt.Errorf("no such program: %w", err)
	case strings.Contains(name, "/"):
		return "", fmt.Errorf("no such program: %s does not exist", name)
	default:
		return "", fmt.Errorf("no such program: %s is not in PATH", name)
	}
}
