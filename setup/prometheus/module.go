// Package prometheus pins the Prometheus server and its rule checker that the tests run; set-up builds the module's
// tools. It is a module of its own because Prometheus can't be installed by version: its module replaces a dependency.
package prometheus
