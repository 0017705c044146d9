// Package monitoring has a real Prometheus scrape real agents, with the config, the alerts and the dashboard that users
// get.
package monitoring
