// Which rows of the training split stay: a cap on what one tenant may give, and a mix of domains.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace specdec::data {

struct RowTags {
  uint64_t tenant = 0;   // key of its name, 0 = none: never capped
  uint32_t domain = 0;   // index into the list of names
  bool holdout = false;  // held-out rows stay, and count for nothing: the hold-out is the traffic as it is
};

struct SelectionOptions {
  int64_t tenant_cap = 0;             // rows of one tenant, 0 = no cap
  std::map<std::string, double> mix;  // domain → share of the rows; empty = as they come
  uint64_t seed = 0;
};

struct Selection {
  std::vector<bool> kept;           // one a row
  int64_t capped = 0, thinned = 0;  // dropped by the cap, by the mix
};

// "chat=0.5,code=0.3". Throws Error(kUsage): no such list, a share outside (0, 1], a sum over 1.
std::map<std::string, double> parse_mix(const std::string& text);

// Of a tenant with more rows than the cap, and of a domain with more than its share, the rows with the smallest seeded
// random numbers stay. The mix keeps as many rows as it can: domains not named share what the shares leave over in
// their own proportions, and go if that is nothing. Throws Error(kData) for a domain in the mix without rows.
Selection select_rows(const std::vector<RowTags>& rows, const std::vector<std::string>& domains,
                      const SelectionOptions& options);

}  // namespace specdec::data
