package firewall

import "github.com/google/nftables"

// ChainName is which chain of nftables it is; the family's name is nft's.
type ChainName struct{ Family, Table, Name string }

// nftFamilies are nft's names.
var nftFamilies = map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyINet: "inet", nftables.TableFamilyBridge: "bridge", nftables.TableFamilyARP: "arp",
	nftables.TableFamilyNetdev: "netdev"}

// ChainNames asks the kernel which chains the calling thread's namespace has, whoever wrote them.
func ChainNames() (all []ChainName, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	listed, err := conn.ListChains()
	for _, c := range listed {
		all = append(all, ChainName{nftFamilies[c.Table.Family], c.Table.Name, c.Name})
	}
	return all, err
}
