//go:build !nocloud

package main

import "github.com/twill-net/twill/cloud"

// clouds are the providers that the agent contains, by the backend's type.
var clouds = map[string]cloud.Opener{}
