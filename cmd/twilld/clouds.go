//go:build !nocloud

package main

import (
	// The image has no certificates of authorities, and the providers' APIs are behind HTTPS. They count where the machine
	// has none of its own.
	_ "golang.org/x/crypto/x509roots/fallback"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/ali"
	"github.com/twill-net/twill/cloud/aws"
	"github.com/twill-net/twill/cloud/gce"
)

// clouds are the providers that the agent contains, by the backend's type.
var clouds = map[string]cloud.Opener{
	"ali-vpc": ali.New,
	"aws-vpc": aws.New,
	"gce":     gce.New,
}
