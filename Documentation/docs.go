// Package docs holds the pages that programs read.
package docs

import _ "embed"

// Findings is the page of all that the doctor can find. Package doctor reads its catalogue from it.
//
//go:embed findings.md
var Findings string
