package comm

import (
	"fmt"
	"os"
	"strings"
)

// hostKey is equal in processes that can share memory and reach each other over
// loopback: one boot of one kernel, and the namespaces that divide it.
func hostKey() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot tell which host this is: %w", err)
	}
	key := []string{strings.TrimSpace(string(boot))}
	for _, ns := range []string{"ipc", "net", "pid", "mnt"} {
		link, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			return "", fmt.Errorf("cannot tell which host this is: %w", err)
		}
		key = append(key, link)
	}
	return strings.Join(key, " "), nil
}

// hostsOf groups ranks by host: hosts[i] are the ranks of host i in rising order;
// hosts are in the order of their first rank.
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
