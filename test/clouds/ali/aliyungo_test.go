package ali_test

import (
	"errors"
	"maps"
	"net/url"
	"strings"
	"testing"

	"github.com/denverdino/aliyungo/common"
	"github.com/denverdino/aliyungo/ecs"
	"github.com/denverdino/aliyungo/util"

	"github.com/twill-net/twill/cloud"
)

// TestSignatures: what Twill signs is what the library that flannel used would have signed.
func TestSignatures(t *testing.T) {
	judged := 0
	for action, all := range newFront(t).requests(t) {
		for _, sent := range all {
			unsigned := maps.Clone(sent)
			delete(unsigned, "Signature")
			values := url.Values(unsigned)
			if want := util.CreateSignatureForRequest("POST", &values, keySecret+"&"); sent.Get("Signature") != want {
				t.Errorf("%s: signature %s, want %s", action, sent.Get("Signature"), want)
			}
			judged++
		}
	}
	t.Logf("%d signatures judged", judged)
}

// TestFlannel: flannel's library makes a route as flannel did, at the front. Twill takes it for the node's own.
func TestFlannel(t *testing.T) {
	t.Setenv("CUSTOMIZED_ENDPOINT", "true") // otherwise the library asks where the API is
	f := newFront(t)
	client := ecs.NewVPCClientWithEndpoint(f.url, keyID, keySecret, common.Region(region))
	err := client.CreateRouteEntry(&ecs.CreateRouteEntryArgs{RouteTableId: "vtb-main", DestinationCidrBlock: "10.244.1.0/24",
		NextHopType: ecs.NextHopIntance, NextHopId: "i-1", ClientToken: "token"})
	if err != nil {
		t.Fatal(err)
	}
	have, err := f.node.List(t.Context(), f.self)
	if err != nil {
		t.Fatal(err)
	}
	if changes := cloud.Diff([]cloud.Route{route("10.244.1.0/24", "i-1")}, have, f.self, nil); len(changes) > 0 {
		t.Errorf("Twill would write %v", changes)
	}
	if err := client.DeleteRouteEntry(&ecs.DeleteRouteEntryArgs{RouteTableId: "vtb-main", DestinationCidrBlock: "10.244.1.0/24",
		NextHopId: "i-1"}); err != nil {
		t.Error(err)
	}
	wrong := ecs.NewVPCClientWithEndpoint(f.url, keyID, "another", common.Region(region))
	err = wrong.DeleteRouteEntry(&ecs.DeleteRouteEntryArgs{RouteTableId: "vtb-main", DestinationCidrBlock: "10.244.1.0/24", NextHopId: "i-1"})
	var refused *common.Error
	if !errors.As(err, &refused) || refused.Code != "SignatureDoesNotMatch" || strings.Contains(refused.Message, "another") {
		t.Errorf("with another secret: %v", err)
	}
}
