package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// governors looks for cores that run slower than they could.
type governors struct{}

func (governors) name() string { return "governors" }

func (governors) look(_ context.Context, m *Machine) ([]Finding, error) {
	files, err := filepath.Glob(m.path("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, errors.New("the kernel does not set the cores' frequency (no cpufreq in sysfs)")
	}
	count := map[string]int{}
	for _, f := range files {
		rel, err := filepath.Rel(m.Root, f)
		if err != nil {
			return nil, err
		}
		g, err := m.text(rel)
		if err != nil {
			return nil, err
		}
		count[g]++
	}
	slow := 0
	var seen []string
	for g, n := range count {
		seen = append(seen, fmt.Sprintf("%s on %d", g, n))
		// schedutil and ondemand raise the frequency under load, within milliseconds; a
		// ring's short waits never get there.
		if g != "performance" {
			slow += n
		}
	}
	if slow == 0 {
		return nil, nil
	}
	slices.Sort(seen)
	return []Finding{{
		Severity: Note,
		What:     fmt.Sprintf("%d of %d cores may run below their full frequency: small messages take longer", slow, len(files)),
		Evidence: fmt.Sprintf("scaling_governor: %s", orNone(seen)),
		Fix:      "cpupower frequency-set -g performance",
	}}, nil
}
