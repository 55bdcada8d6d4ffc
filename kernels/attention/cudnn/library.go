package cudnn

import (
	"fmt"
	"os"

	"github.com/gorun-dev/gorun/runtime/cuda"
	"github.com/gorun-dev/gorun/runtime/dl"
)

// oldest is the least version on which the graphs were proved. Some earlier ones
// have known faults in attention.
const oldest = 91400

const install = "cuDNN 9.14 or newer (the packages libcudnn9-cuda-12 or libcudnn9-cuda-13, or pip's nvidia-cudnn-cu12 or nvidia-cudnn-cu13)"

// wanted says where cuDNN may lie.
var wanted = dl.Spec{
	Name:    "cuDNN",
	Files:   []string{"libcudnn.so.9"},
	Env:     "GORUN_CUDNN_LIB",
	Folders: []string{"nvidia/cudnn/lib"},
	Gives:   "fused attention on NVIDIA GPUs",
	Install: install,
}

// library is the functions of an open cuDNN. All but the first three return a
// cudnnStatus_t.
type library struct {
	path    string
	version int // 91400 is 9.14.0
	cuda    int // the major version of CUDA that it was built for

	getVersion, getCudart, statusName, lastError dl.Proc
	create, destroy, setStream                   dl.Proc
	newDescriptor, freeDescriptor                dl.Proc
	setAttribute, getAttribute                   dl.Proc
	finalize, execute                            dl.Proc
}

// load opens cuDNN and refuses a version that is too old.
func load() (*library, error) {
	file, err := dl.Open(wanted)
	if err != nil {
		return nil, err
	}
	l := &library{path: file.Path}
	// The version comes first: what the user of an old library has to know is that
	// it is old, not which function it lacks.
	if l.getVersion, err = file.Proc("cudnnGetVersion"); err != nil {
		return nil, err
	}
	l.version = int(l.getVersion.Call())
	if l.version < oldest {
		return nil, fmt.Errorf("cuDNN: %s is version %s, and %s or newer is needed: install %s, or set %s to its full path",
			l.path, versionText(l.version), versionText(oldest), install, wanted.Env)
	}
	for _, f := range []struct {
		proc *dl.Proc
		name string
	}{
		{&l.getCudart, "cudnnGetCudartVersion"},
		{&l.statusName, "cudnnGetErrorString"},
		{&l.lastError, "cudnnGetLastErrorString"},
		{&l.create, "cudnnCreate"},
		{&l.destroy, "cudnnDestroy"},
		{&l.setStream, "cudnnSetStream"},
		{&l.newDescriptor, "cudnnBackendCreateDescriptor"},
		{&l.freeDescriptor, "cudnnBackendDestroyDescriptor"},
		{&l.setAttribute, "cudnnBackendSetAttribute"},
		{&l.getAttribute, "cudnnBackendGetAttribute"},
		{&l.finalize, "cudnnBackendFinalize"},
		{&l.execute, "cudnnBackendExecute"},
	} {
		if *f.proc, err = file.Proc(f.name); err != nil {
			return nil, err
		}
	}
	l.cuda = int(l.getCudart.Call()) / 1000
	return l, nil
}

// prepare opens the libraries that cuDNN opens by itself when it makes a plan. It
// looks for them by the loader alone and would miss those of wheels and toolkits;
// once they are open, the loader finds them by their names. Without cuBLASLt some
// versions (9.19) do not fail but end the process.
func (l *library) prepare() error {
	for _, s := range []dl.Spec{{
		Name:    "NVRTC",
		Files:   []string{fmt.Sprintf("libnvrtc.so.%d", l.cuda)},
		Env:     "GORUN_NVRTC_LIB",
		Folders: []string{fmt.Sprintf("nvidia/cu%d/lib", l.cuda), "nvidia/cuda_nvrtc/lib"},
		Beside:  []string{"libnvrtc-builtins.so.*"},
		Gives:   "the compilation of cuDNN's attention",
		Install: fmt.Sprintf("NVRTC of CUDA %d, which this cuDNN is built for", l.cuda),
	}, {
		Name:    "cuBLASLt",
		Files:   []string{fmt.Sprintf("libcublasLt.so.%d", l.cuda)},
		Env:     "GORUN_CUBLASLT_LIB",
		Folders: []string{fmt.Sprintf("nvidia/cu%d/lib", l.cuda), "nvidia/cublas/lib"},
		Gives:   "what cuDNN starts with",
		Install: fmt.Sprintf("cuBLAS of CUDA %d, which this cuDNN is built for", l.cuda),
	}} {
		if os.Getenv(s.Env) != "" {
			// The user's own file, which the loader then knows by its name where it is
			// the version that cuDNN wants.
			if _, err := dl.Open(s); err != nil {
				return err
			}
		}
		s.Env = ""
		if _, err := dl.Open(s); err != nil {
			return fmt.Errorf("cuDNN %s (%s): %w", versionText(l.version), l.path, err)
		}
	}
	return nil
}

// versionText is a version in words. Before 9 a minor version had one digit.
func versionText(v int) string {
	if v < 90000 {
		return fmt.Sprintf("%d.%d.%d", v/1000, v/100%10, v%100)
	}
	return cuda.LibraryVersion(v)
}

// statusError is a call of cuDNN that failed.
type statusError struct {
	call string // what was called, and on what
	code int32
	name string // "CUDNN_STATUS_BAD_PARAM"
	text string // what the library says of it, "" where it says nothing
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%s: %s (%d)", e.call, e.name, e.code)
	if e.text != "" {
		text += ": " + e.text
	}
	return text
}
