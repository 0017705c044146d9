package fake

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/cloud"
)

// eni returns the ID of a NIC's network interface.
func (n NIC) eni() string { return "eni-" + strings.TrimPrefix(n.ID, "i-") }

// aliServices is the block that every VPC has a route to.
var aliServices = netip.MustParsePrefix("100.64.0.0/10")

func (a *ali) describeVSwitch(form url.Values) (map[string]any, error) {
	id := form.Get("VSwitchId")
	if !slices.Contains(a.vswitches(), id) {
		return nil, aliError{http.StatusNotFound, "InvalidVSwitchId.NotFound", "Specified vSwitch does not exist."}
	}
	answer := map[string]any{"VSwitchId": id, "VpcId": a.ID, "Status": "Available"}
	if block, ok := a.o.VSwitches[id]; ok {
		answer["CidrBlock"] = block.String()
	}
	if t, ok := a.TableOf(id); ok {
		answer["RouteTable"] = map[string]any{"RouteTableId": t.ID, "RouteTableType": t.aliType()}
	}
	return answer, nil
}

func (t Table) aliType() string {
	if t.Main {
		return "System"
	}
	return "Custom"
}

// vswitches returns the IDs of all that are known.
func (a *ali) vswitches() (ids []string) {
	for _, n := range a.NICs() {
		ids = append(ids, n.Subnet)
	}
	for id := range a.o.VSwitches {
		ids = append(ids, id)
	}
	for _, t := range a.Tables() {
		ids = append(ids, t.Subnets...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (a *ali) describeTables(form url.Values) (map[string]any, error) {
	list := []any{}
	for _, t := range a.Tables() {
		if !aliWanted(form, "VpcId", a.ID) || !aliWanted(form, "RouteTableId", t.ID) ||
			!aliWanted(form, "RouteTableType", t.aliType()) {
			continue
		}
		uses := []string{}
		for _, v := range a.vswitches() {
			if of, ok := a.TableOf(v); ok && of.ID == t.ID {
				uses = append(uses, v)
			}
		}
		list = append(list, map[string]any{"RouteTableId": t.ID, "RouteTableType": t.aliType(), "VpcId": a.ID,
			"RouterType": "VRouter", "AssociateType": "VSwitch", "Status": "Available",
			"VSwitchIds": map[string]any{"VSwitchId": uses}})
	}
	number, size := 1, 10
	for name, field := range map[string]*int{"PageNumber": &number, "PageSize": &size} {
		if text := form.Get(name); text != "" {
			*field, _ = strconv.Atoi(text) // it is a number: see check
		}
	}
	if number < 1 || size < 1 || size > 50 {
		return nil, aliError{http.StatusBadRequest, "InvalidParameter.PageSize",
			"PageNumber begins at 1, PageSize is from 1 to 50."}
	}
	from := min((number-1)*size, len(list))
	return map[string]any{"TotalCount": len(list), "PageNumber": number, "PageSize": size,
		"RouterTableList": map[string]any{"RouterTableListType": list[from:min(from+size, len(list))]}}, nil
}

// hasTable refuses a table that there is not.
func (a *ali) hasTable(id string) error {
	if !slices.ContainsFunc(a.Tables(), func(t Table) bool { return t.ID == id }) {
		return aliError{http.StatusNotFound, "InvalidRouteTableId.NotFound", "Specified route table does not exist."}
	}
	return nil
}

func (a *ali) describeRoutes(form url.Values) (map[string]any, error) {
	if err := a.hasTable(form.Get("RouteTableId")); err != nil {
		return nil, err
	}
	var list []any
	add := func(r cloud.Route, kind string, hops []any) {
		version := "ipv4"
		if r.Dst.Addr().Is6() {
			version = "ipv6"
		}
		if !aliWanted(form, "RouteTableId", r.Table) || !aliWanted(form, "DestinationCidrBlock", r.Dst.String()) ||
			!aliWanted(form, "NextHopId", strings.Split(r.Target, ",")...) || !aliWanted(form, "RouteEntryId", aliID(r)) ||
			!aliWanted(form, "RouteEntryType", kind) || !aliWanted(form, "IpVersion", version) ||
			!aliWanted(form, "NextHopType", aliHopType(r.Target)) {
			return
		}
		list = append(list, map[string]any{"RouteTableId": r.Table, "DestinationCidrBlock": r.Dst.String(),
			"RouteEntryId": aliID(r), "Type": kind, "Status": a.status(r), "Description": r.Mark, "RouteEntryName": r.Name,
			"IpVersion": version, "NextHops": map[string]any{"NextHop": hops}})
	}
	table := form.Get("RouteTableId")
	for _, id := range slices.Sorted(maps.Keys(a.o.VSwitches)) {
		add(cloud.Route{Table: table, Dst: a.o.VSwitches[id], Target: "local"}, "System",
			[]any{map[string]any{"NextHopType": "local", "NextHopId": "", "Enabled": 1}})
	}
	add(cloud.Route{Table: table, Dst: aliServices, Target: "service"}, "System",
		[]any{map[string]any{"NextHopType": "service", "NextHopId": "", "Enabled": 1}})
	for _, r := range a.Visible() {
		add(r, "Custom", aliHops(r))
	}
	part, next, err := aliPage(list, form, "MaxResult", 50, 500)
	if err != nil {
		return nil, err
	}
	if part == nil {
		part = []any{}
	}
	return map[string]any{"NextToken": next, "RouteEntrys": map[string]any{"RouteEntry": part}}, nil
}

// aliID returns the ID of a route.
func aliID(r cloud.Route) string {
	h := fnv.New64a()
	fmt.Fprint(h, r.Table, " ", r.Dst)
	return fmt.Sprintf("rte-%016x", h.Sum64())
}

// aliHops returns the next hops of a route: several are separated by commas.
func aliHops(r cloud.Route) (hops []any) {
	enabled := 1
	if r.State == cloud.Blackhole {
		enabled = 0
	}
	for _, id := range strings.Split(r.Target, ",") {
		hops = append(hops, map[string]any{"NextHopId": id, "NextHopType": aliHopType(id), "Enabled": enabled})
	}
	return hops
}

func aliHopType(id string) string {
	kind, _, _ := strings.Cut(id, "-")
	for start, name := range map[string]string{"i": "Instance", "eni": "NetworkInterface", "ngw": "NatGateway",
		"vpn": "VpnGateway", "ri": "RouterInterface", "havip": "HaVip", "local": "local", "service": "service"} {
		if kind == start {
			return name
		}
	}
	return "Ipv4Gateway"
}

// status returns the state of a route as the API names it.
func (a *ali) status(r cloud.Route) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.State == cloud.Pending || a.made[aliID(r)] && a.isSlow() {
		return "Pending"
	}
	return "Available"
}

func (a *ali) createRoute(form url.Values) (map[string]any, error) {
	r := cloud.Route{Table: form.Get("RouteTableId"), Target: form.Get("NextHopId"), Name: form.Get("RouteEntryName"),
		Mark: form.Get("Description")}
	if err := a.hasTable(r.Table); err != nil {
		return nil, err
	}
	dst, err := netip.ParsePrefix(form.Get("DestinationCidrBlock"))
	if err != nil || dst != dst.Masked() {
		return nil, aliError{http.StatusBadRequest, "InvalidCidrBlock.Malformed", "Specified CIDR block is not valid."}
	}
	r.Dst = dst
	for _, block := range append(slices.Collect(maps.Values(a.o.VSwitches)), aliServices) {
		if block.Contains(dst.Addr()) && dst.Bits() >= block.Bits() {
			return nil, aliError{http.StatusBadRequest, "InvalidCidrBlock", "Specified CIDR block is not valid."}
		}
	}
	kind := form.Get("NextHopType")
	switch {
	case kind == "" || r.Target == "":
		return nil, aliError{http.StatusBadRequest, "InvalidNexthopTypeAndList.BothNull",
			"both nexthopType and nextHopList are null."}
	case kind != aliHopType(r.Target):
		return nil, aliError{http.StatusBadRequest, "InvalidNextHopType", `Specified parameter "NextHopType" is not valid`}
	}
	if _, ok := a.NIC(func(n NIC) bool { return n.ID == r.Target || n.eni() == r.Target }); !ok {
		return nil, aliError{http.StatusNotFound, "InvalidNextHopId.NotFound", "Specified next hop does not exist."}
	}
	if strings.HasPrefix(r.Mark, "http://") || strings.HasPrefix(r.Mark, "https://") || len(r.Mark) > 256 {
		return nil, aliError{http.StatusBadRequest, "InvalidDescription.Malformed", "Specified Description is not valid."}
	}
	if err := a.begin(); err != nil {
		return nil, err
	}
	if err := a.Apply(cloud.Change{Op: cloud.Create, Route: r}); err != nil {
		return nil, err
	}
	a.end(r, true)
	return map[string]any{"RouteEntryId": aliID(r)}, nil
}

func (a *ali) deleteRoute(form url.Values) (map[string]any, error) {
	id, table, dst := form.Get("RouteEntryId"), form.Get("RouteTableId"), form.Get("DestinationCidrBlock")
	hops := aliList(form, "NextHopList", ".NextHopId")
	switch {
	case id != "" && (table != "" || dst != ""):
		return nil, aliError{http.StatusBadRequest, "ParamExclusive.RouteEntryIdAndRouteTableIdOrDestCidrBlock",
			"RouteEntryId excludes the others."}
	case id == "" && (table == "" || dst == ""):
		return nil, aliError{http.StatusBadRequest, "MissingParameter", "Miss mandatory parameter."}
	case form.Get("NextHopId") != "" && len(hops) > 0:
		return nil, aliError{http.StatusBadRequest, "ParamExclusive.NextHopIdAndList",
			"NextHopId and NextHopList cannot both be not null."}
	case id == "" && form.Get("NextHopId") == "" && len(hops) == 0:
		return nil, aliError{http.StatusBadRequest, "InvalidNextHop",
			"Specified nexthop and nexthop list cannot both null."}
	}
	target := form.Get("NextHopId") + strings.Join(hops, ",")
	all := a.Routes()
	i := slices.IndexFunc(all, func(r cloud.Route) bool {
		return id != "" && aliID(r) == id || r.Table == table && r.Dst.String() == dst && r.Target == target
	})
	if i < 0 {
		return nil, cloud.ErrGone
	}
	if a.status(all[i]) == "Pending" {
		return nil, aliError{http.StatusBadRequest, "IncorrectRouteEntryStatus",
			"Some route entry status blocked this operation."}
	}
	if err := a.begin(); err != nil {
		return nil, err
	}
	if err := a.Apply(cloud.Change{Op: cloud.Delete, Route: all[i]}); err != nil {
		return nil, err
	}
	a.end(all[i], false)
	return map[string]any{}, nil
}

// begin refuses a change while another one of the VPC goes on.
func (a *ali) begin() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changing && a.isSlow() {
		return cloud.ErrBusy
	}
	return nil
}

// end notes a change, which goes on for a while.
func (a *ali) end(r cloud.Route, made bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.made, aliID(r))
	if made {
		a.made[aliID(r)] = true
	}
	a.changing = true
}

func (a *ali) isSlow() bool { return a.o.Slow != nil && a.o.Slow.Load() }

func (a *ali) describeNICs(form url.Values) (map[string]any, error) {
	ids := aliList(form, "NetworkInterfaceId", "")
	list := []any{}
	for _, n := range a.NICs() {
		if !aliWanted(form, "InstanceId", n.ID) || !aliWanted(form, "VpcId", a.ID) ||
			!aliWanted(form, "VSwitchId", n.Subnet) || len(ids) > 0 && !slices.Contains(ids, n.eni()) {
			continue
		}
		nic := map[string]any{"NetworkInterfaceId": n.eni(), "InstanceId": n.ID, "MacAddress": n.MAC, "VpcId": a.ID,
			"VSwitchId": n.Subnet, "Type": "Primary", "Status": "InUse", "SourceDestCheck": !n.Forwards}
		if len(n.Addrs) > 0 {
			nic["PrivateIpAddress"] = n.Addrs[0].String()
		}
		list = append(list, nic)
	}
	part, next, err := aliPage(list, form, "MaxResults", 100, 500)
	if err != nil {
		return nil, err
	}
	return map[string]any{"NextToken": next, "TotalCount": len(list),
		"NetworkInterfaceSets": map[string]any{"NetworkInterfaceSet": part}}, nil
}

func (a *ali) modifyNIC(form url.Values) (map[string]any, error) {
	nic, ok := a.NIC(func(n NIC) bool { return n.eni() == form.Get("NetworkInterfaceId") })
	if !ok {
		return nil, aliError{http.StatusNotFound, "InvalidEniId.NotFound", "The specified EniId is not found."}
	}
	if check := form.Get("SourceDestCheck"); check != "" {
		a.SetForwards(nic.ID, check == "false")
	}
	return map[string]any{}, nil
}
