//go:build !nocloud

package main

import (
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
