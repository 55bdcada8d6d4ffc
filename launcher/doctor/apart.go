package doctor

import "fmt"

// Apart is what a host that cannot meet the others has to say of that; err is why, as
// far as it knows.
func Apart(host, endpoint string, err error) Examination {
	return Examination{Findings: []Finding{{
		Check: "meeting", Severity: Error, Where: Where{Host: host},
		What:     fmt.Sprintf("the hosts cannot meet at %s, and what is between them was not looked at: no job would start either", endpoint),
		Evidence: err.Error(),
		Fix:      "start gorun doctor on every host, with the same --nnodes, --rdzv and token, a --node-rank of its own, and an address of node 0 that the others reach; open the port there; with --hosts see that ssh lets you in without a password",
	}}}
}
