package cudnn

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorun-dev/gorun/runtime/dl"
)

func TestLibrariesThatDoNotServe(t *testing.T) {
	refused := func(t *testing.T, says ...string) error {
		t.Helper()
		l, err := load()
		if err == nil {
			t.Fatalf("%s is taken", l.path)
		}
		for _, want := range says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v\nsays nothing of %q", err, want)
			}
		}
		return err
	}
	t.Run("old", func(t *testing.T) {
		path := compiled(t, "fakecudnn.c", "libcudnn.so.9", "-DVERSION=91301")
		t.Setenv(wanted.Env, path)
		refused(t, path, "version 9.13.1", "9.14.0 or newer", "nvidia-cudnn-cu13", wanted.Env)
	})
	t.Run("very old", func(t *testing.T) {
		t.Setenv(wanted.Env, compiled(t, "fakecudnn.c", "libcudnn.so.9", "-DVERSION=8907"))
		refused(t, "version 8.9.7")
	})
	t.Run("a function missing", func(t *testing.T) {
		t.Setenv(wanted.Env, compiled(t, "fakecudnn.c", "libcudnn.so.9", "-DWITHOUT_CREATE"))
		refused(t, "no function cudnnCreate")
	})
	t.Run("the named file missing", func(t *testing.T) {
		t.Setenv(wanted.Env, filepath.Join(t.TempDir(), "libcudnn.so.9"))
		refused(t, wanted.Env)
	})
	t.Run("nowhere", func(t *testing.T) {
		old := wanted
		t.Cleanup(func() { wanted = old })
		t.Setenv(wanted.Env, "")
		wanted.Files, wanted.Folders = []string{"libcudnn.so.none"}, nil
		err := refused(t, "fused attention", "install cuDNN 9.14 or newer", wanted.Env)
		if !errors.Is(err, dl.ErrNotFound) {
			t.Errorf("%v is not ErrNotFound", err)
		}
	})
}

func TestVersionText(t *testing.T) {
	for v, want := range map[int]string{8907: "8.9.7", 91400: "9.14.0", 91002: "9.10.2", 100203: "10.2.3"} {
		if got := versionText(v); got != want {
			t.Errorf("%d is %s, want %s", v, got, want)
		}
	}
}

// Without what cuDNN opens itself its user would see a failed plan, or with some
// versions the end of the process.
func TestPrepareNamesWhatIsMissing(t *testing.T) {
	f := openFake(t)
	f.cuda = 97 // for which there is nothing
	t.Setenv("GORUN_NVRTC_LIB", "")
	err := f.prepare()
	if err == nil {
		t.Fatal("libraries of CUDA 97 were found")
	}
	for _, want := range []string{"cuDNN 9.14.0", "libnvrtc.so.97", "NVRTC of CUDA 97"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nsays nothing of %q", err, want)
		}
	}
}
