package config

import "strings"

// available lists, for keys whose values are not all built yet, the ones that
// are. A value that stands in a key's enum or range but not here is refused with
// this list. Whoever builds a feature deletes its line, or adds to it.
var available = map[string][]string{
	"comm.transport": {"auto", "shm", "tcp"},
}

// unavailable says that c's value of f is not built yet, or returns "".
func (c *Config) unavailable(f *field) string {
	works, limited := available[f.path]
	if !limited {
		return ""
	}
	value := strings.Trim(show(f.in(c)), `"`)
	for _, w := range works {
		if value == w {
			return ""
		}
	}
	if f.describesShape() && f.in(c).IsZero() {
		return "" // the model's folder gives it
	}
	return value + " is not available in this build yet; what works: " + strings.Join(works, ", ")
}
