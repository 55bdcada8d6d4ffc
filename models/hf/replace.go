package hf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Vacant says whether a folder of a model, or of adapters, may be written to dir: nothing
// is there, or with replace an empty folder or one such as is to be written, which goes
// then. Anything else stays: a mistyped path must not cost checkpoints or a home folder.
func Vacant(dir string, replace bool) error {
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !replace:
		return fmt.Errorf("%s exists already", dir)
	case !info.IsDir():
		return fmt.Errorf("%s is no folder, and only a folder of a model or of adapters is replaced: name another, or remove it", dir)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.IsDir() {
			return fmt.Errorf("%s holds the folder %s, and so is more than a model or adapters, which alone are replaced: name another, or remove it", dir, e.Name())
		}
	}
	if len(list) == 0 || holds(dir, "config.json") || holds(dir, "adapter_config.json") {
		return nil
	}
	return fmt.Errorf("%s has neither config.json nor adapter_config.json, and only a folder of a model or of adapters is replaced: name another, or remove it", dir)
}

func holds(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}
