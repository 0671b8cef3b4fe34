// SPDX-License-Identifier: Apache-2.0

// The labels that Node Feature Discovery makes of the files in its folder, as one line of JSON: its
// own local source, which reads /etc/kubernetes/node-feature-discovery/features.d, and its own
// judge of names, which says here what it refuses.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"sigs.k8s.io/node-feature-discovery/pkg/apis/nfd/validate"
	"sigs.k8s.io/node-feature-discovery/source"
	_ "sigs.k8s.io/node-feature-discovery/source/local"
)

func main() {
	if err := source.GetFeatureSource("local").Discover(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	labels, err := source.GetLabelSource("local").GetLabels()
	for name, value := range labels {
		if err == nil {
			err = validate.Label(name, fmt.Sprint(value))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(labels); err != nil {
		os.Exit(1)
	}
}
