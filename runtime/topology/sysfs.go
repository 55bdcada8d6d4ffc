package topology

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// tree is a folder with a machine's /sys and /proc; / is that of this machine. Its
// symbolic links must stay inside.
type tree string

func (t tree) path(parts ...string) string {
	return filepath.Join(append([]string{string(t)}, parts...)...)
}

// text is what a file says, without space around it. A file that is absent, or that
// the kernel has nothing to say in, gives "": to whoever asks the two are the same.
func (t tree) text(parts ...string) string {
	b, err := os.ReadFile(t.path(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// number is what a file says; otherwise is for one that says none.
func (t tree) number(otherwise int, parts ...string) int {
	n, err := strconv.Atoi(t.text(parts...))
	if err != nil {
		return otherwise
	}
	return n
}

// list is the names in a folder, sorted; none if it is absent.
func (t tree) list(parts ...string) []string {
	entries, err := os.ReadDir(t.path(parts...))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}

func (t tree) exists(parts ...string) bool {
	_, err := os.Stat(t.path(parts...))
	return err == nil
}

// real is where a path leads to when all links are followed, in parts below the
// tree's root; nil if it leads nowhere.
func (t tree) real(parts ...string) []string {
	root, err := filepath.EvalSymlinks(string(t))
	if err != nil {
		return nil
	}
	path, err := filepath.EvalSymlinks(t.path(parts...))
	if err != nil {
		return nil
	}
	rel, err := filepath.Rel(root, path)
	if err != nil || strings.HasPrefix(rel, "..") {
		return nil
	}
	return strings.Split(rel, "/")
}

// linkName is the name of what a link leads to, "" if it leads nowhere.
func (t tree) linkName(parts ...string) string {
	to := t.real(parts...)
	if len(to) == 0 {
		return ""
	}
	return to[len(to)-1]
}

// isBusID says that a name is a PCI address: 0000:17:00.0, or with a longer domain.
func isBusID(name string) bool {
	domain, rest, ok := strings.Cut(name, ":")
	if !ok || len(domain) < 4 || len(rest) != len("17:00.0") || rest[2] != ':' || rest[5] != '.' {
		return false
	}
	for _, c := range strings.NewReplacer(":", "", ".", "").Replace(name) {
		if !strings.ContainsRune("0123456789abcdefABCDEF", c) {
			return false
		}
	}
	return true
}

// normalBusID is the spelling of /sys, in small letters and with a domain of four
// digits unless it needs more: NVML writes 00000000:3B:00.0.
func normalBusID(id string) string {
	id = strings.ToLower(strings.TrimSpace(id))
	if domain, rest, ok := strings.Cut(id, ":"); ok && isBusID(id) {
		domain = strings.TrimLeft(domain, "0")
		return strings.Repeat("0", max(0, 4-len(domain))) + domain + ":" + rest
	}
	return id
}
