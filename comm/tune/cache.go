package tune

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Folder is where tables are kept: $XDG_CACHE_HOME/gorun/comm, or ~/.cache/gorun/comm.
func Folder() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(base, "gorun", "comm"), nil
}

// kept is a table with what it holds for.
type kept struct {
	Key    string  `json:"key"`
	Points []Point `json:"points"`
}

// Encode is the table as Decode reads it.
func (t *Table) Encode() []byte {
	b, err := json.Marshal(t.points)
	if err != nil {
		panic(err) // no point is NaN or infinite
	}
	return b
}

// Decode reads what Encode wrote.
func Decode(b []byte) (*Table, error) {
	var points []Point
	if err := json.Unmarshal(b, &points); err != nil {
		return nil, fmt.Errorf("a table of measurements: %w", err)
	}
	return check(points)
}

func check(points []Point) (*Table, error) {
	for _, p := range points {
		if !p.valid() {
			return nil, fmt.Errorf("a table of measurements: %+v cannot have been measured", p)
		}
	}
	t := New(points)
	for i := 1; i < len(t.points); i++ {
		if a, b := t.points[i-1], t.points[i]; a.Call == b.Call && a.Algorithm == b.Algorithm && a.Bytes == b.Bytes {
			return nil, fmt.Errorf("a table of measurements: %+v and %+v are of the same", a, b)
		}
	}
	return t, nil
}

// Load returns the table that was kept in folder for what key names: the machines, how
// they are joined, all that a time depends on. It is nil where there is none, and an
// error where the file is no table for key, or where fits, which is given its points, says
// that they are not of such machines.
func Load(folder, key string, fits func([]Point) error) (*Table, error) {
	b, err := os.ReadFile(file(folder, key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var k kept
	if err := json.Unmarshal(b, &k); err != nil {
		return nil, fmt.Errorf("%s: %w", file(folder, key), err)
	}
	if k.Key != key {
		return nil, fmt.Errorf("%s: it is of other machines: %q, not %q", file(folder, key), k.Key, key)
	}
	t, err := check(k.Points)
	if err == nil {
		err = fits(t.Points())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file(folder, key), err)
	}
	return t, nil
}

// Save keeps the table in folder. Of several processes that save for the same key the
// last one's stays; who reads finds a whole table at any time.
func Save(folder, key string, t *Table) (err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(kept{key, t.points}, "", " ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file(folder, key))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// file is named by the key's beginning, for people, and its checksum.
func file(folder, key string) string {
	sum := sha256.Sum256([]byte(key))
	name, _, _ := strings.Cut(key, ";")
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '-'
	}, name)
	return filepath.Join(folder, fmt.Sprintf("%.40s-%s.json", name, hex.EncodeToString(sum[:8])))
}
