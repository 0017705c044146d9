// The site of Documentation/, and what checks its Markdown and its words.
module github.com/twill-net/twill/tools/docs

go 1.26.0

require (
	github.com/golangci/misspell v0.8.0
	github.com/yuin/goldmark v1.8.6
)
