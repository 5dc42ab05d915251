// Chooses the rows of the training split that are kept: a cap per tenant, and a mix of domains.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace specdec::data {

struct RowTags {
  uint64_t tenant = 0;   // key of the tenant's name; 0 = none, which is never capped
  uint32_t domain = 0;   // index into `domains` of select_rows
  bool holdout = false;  // true: always kept and never counted, because the hold-out must show the traffic as it is
};

struct SelectionOptions {
  int64_t tenant_cap = 0;             // rows per tenant; 0 = no cap
  std::map<std::string, double> mix;  // domain → share of the rows; empty = no mix
  uint64_t seed = 0;
};

struct Selection {
  std::vector<bool> kept;           // one per row
  int64_t capped = 0, thinned = 0;  // rows dropped by the cap and by the mix
};

// Parses "chat=0.5,code=0.3". Throws Error(kUsage) for malformed text, a share outside (0, 1], or a sum over 1.
std::map<std::string, double> parse_mix(const std::string& text);

// Returns which rows to keep. If a tenant has more rows than the cap, or a domain more than its share, the rows with
// the smallest seeded random numbers are kept. The mix keeps as many rows as its shares allow. Domains that the mix
// does not name divide the remaining share in proportion to their rows, and are dropped if no share remains. Throws
// Error(kData) if a domain in the mix has no rows.
Selection select_rows(const std::vector<RowTags>& rows, const std::vector<std::string>& domains,
                      const SelectionOptions& options);

}  // namespace specdec::data
