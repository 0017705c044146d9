package main

import (
	"reflect"
	"testing"
)

// TestDescribe: the same files give the same document, and other files another namespace, which SPDX demands.
func TestDescribe(t *testing.T) {
	made, err := epoch("1700000000")
	if err != nil {
		t.Fatal(err)
	}
	urls := map[string]bool{}
	for _, path := range []string{"libmnl0_1.0.4-3_amd64.deb", "iptables_1.8.9-2_amd64.deb", "libc6_2%3a2.36-9_amd64.deb"} {
		if err := add(urls, path); err != nil {
			t.Fatal(err)
		}
	}
	d := describe("example.org/twill", "v1", made, urls)
	if again := describe("example.org/twill", "v1", made, urls); !reflect.DeepEqual(d, again) {
		t.Errorf("two documents of the same files:\n%v\n%v", d, again)
	}
	if d.CreationInfo.Created != "2023-11-14T22:13:20Z" {
		t.Errorf("created %s, want SOURCE_DATE_EPOCH's time", d.CreationInfo.Created)
	}
	if len(d.Packages) != 4 || d.Packages[2].Name != "libc6" || d.Packages[2].Version != "2:2.36-9" {
		t.Errorf("packages %+v, want the image and three, sorted, the second libc6 2:2.36-9", d.Packages)
	}
	delete(urls, "pkg:deb/debian/libmnl0@1.0.4-3?arch=amd64")
	if other := describe("example.org/twill", "v1", made, urls); other.DocumentNamespace == d.DocumentNamespace {
		t.Errorf("documents of other files share the namespace %s", d.DocumentNamespace)
	}
}

func TestEpoch(t *testing.T) {
	if _, err := epoch("yesterday"); err == nil {
		t.Error("SOURCE_DATE_EPOCH=yesterday gives no error")
	}
}
