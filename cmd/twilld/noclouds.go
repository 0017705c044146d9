//go:build nocloud

package main

import "github.com/twill-net/twill/cloud"

// clouds is empty in an agent that was built without them.
var clouds map[string]cloud.Opener
