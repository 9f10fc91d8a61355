package httpapi

import _ "embed"

// openAPI describes the native API for programs. Types of package api and
// what openapi_test.go says of each request make it; see there.
//
//go:embed openapi.json
var openAPI []byte
