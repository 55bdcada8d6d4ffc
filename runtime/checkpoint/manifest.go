package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"
)

const (
	manifestName    = "manifest.json"
	manifestVersion = 1
)

// castagnoli has an instruction on amd64 and arm64, so it keeps up with the disk.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is a CRC32C.
type Checksum uint32

func (c Checksum) String() string { return fmt.Sprintf("crc32c:%08x", uint32(c)) }

// MarshalText writes the checksum as String shows it.
func (c Checksum) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (c *Checksum) UnmarshalText(b []byte) error {
	var v uint32
	if _, err := fmt.Sscanf(string(b), "crc32c:%08x", &v); err != nil || Checksum(v).String() != string(b) {
		return fmt.Errorf("%q is not a checksum such as crc32c:0123abcd", b)
	}
	*c = Checksum(v)
	return nil
}

// Entry records one file as it was written. Entries are plain values: they travel
// between ranks as JSON or in any other way.
type Entry struct {
	Name     string   `json:"name"`
	Size     int64    `json:"size"` // bytes
	Checksum Checksum `json:"checksum"`
}

type manifest struct {
	Version int             `json:"version"`
	Step    int64           `json:"step"`
	Files   []Entry         `json:"files"` // in order of name
	Meta    json.RawMessage `json:"meta"`
}

// seal is the manifest's file: its text beside the checksum of that text.
func seal(text []byte) []byte {
	sum := Checksum(crc32.Checksum(text, castagnoli))
	return fmt.Appendf(nil, "{\"checksum\": %q,\n\"manifest\": %s}\n", sum, text)
}

func encodeManifest(m manifest) ([]byte, error) {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	return seal(text), nil
}

// readManifest refuses a manifest of which any bit has changed.
func readManifest(dir string) (manifest, error) {
	var m manifest
	file, err := os.ReadFile(filepath.Join(dir, manifestName))
	if st, errDir := os.Stat(dir); errDir != nil || !st.IsDir() {
		return m, errors.New("there is no such folder")
	}
	if errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("the folder has no %s, so it is no checkpoint or has lost a file", manifestName)
	}
	if err != nil {
		return m, err
	}
	var outer struct {
		Manifest json.RawMessage `json:"manifest"`
	}
	if err := json.Unmarshal(file, &outer); err != nil {
		return m, fmt.Errorf("%s (%d bytes) is damaged: %w", manifestName, len(file), err)
	}
	if want := seal(outer.Manifest); !bytes.Equal(file, want) {
		return m, fmt.Errorf("%s is damaged: it begins with %.36q, its content of %d bytes gives %.36q", manifestName, file, len(file), want)
	}
	if err := json.Unmarshal(outer.Manifest, &m); err != nil {
		return m, fmt.Errorf("%s: %w", manifestName, err)
	}
	if m.Version != manifestVersion {
		return m, fmt.Errorf("%s has version %d, this program reads version %d", manifestName, m.Version, manifestVersion)
	}
	for _, e := range m.Files {
		if err := checkName(e.Name); err != nil {
			return m, fmt.Errorf("%s: %w", manifestName, err)
		}
	}
	return m, nil
}

// checkName keeps files inside the folder, and off the manifest's name.
func checkName(name string) error {
	switch {
	case name == manifestName:
		return fmt.Errorf("file name %q is reserved", name)
	case name == "" || name == "." || name == ".." || filepath.Base(name) != name:
		return fmt.Errorf("%q is not a plain file name", name)
	case !utf8.ValidString(name):
		return fmt.Errorf("file name %q is not valid UTF-8", name)
	}
	return nil
}
