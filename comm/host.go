package comm

import (
	"fmt"
	"os"
	"strings"
)

// hostKeys tell where this process runs. memory is equal in processes that can
// share memory, net in those that reach each other over loopback: one boot of one
// kernel, and the same namespaces.
func hostKeys() (memory, net string, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", "", fmt.Errorf("cannot tell which host this is: %w", err)
	}
	key := func(names ...string) string {
		parts := []string{strings.TrimSpace(string(boot))}
		for _, ns := range names {
			link, e := os.Readlink("/proc/self/ns/" + ns)
			if e != nil {
				err = fmt.Errorf("cannot tell which host this is: %w", e)
			}
			parts = append(parts, link)
		}
		return strings.Join(parts, " ")
	}
	return key("ipc", "net", "pid"), key("net"), err
}

// hostsOf groups ranks by the memory that they share: hosts[i] are ranks in rising
// order; hosts are in the order of their first rank.
func hostsOf(members []member) [][]int {
	var hosts [][]int
	place := map[string]int{}
	for r, m := range members {
		i, ok := place[m.Key]
		if !ok {
			i = len(hosts)
			place[m.Key] = i
			hosts = append(hosts, nil)
		}
		hosts[i] = append(hosts[i], r)
	}
	return hosts
}
