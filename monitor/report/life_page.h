// Renders a draft's history (life.h) as the HTML page and the text of `monitor report`.
#pragma once

#include <string>

#include "base/page/page.h"
#include "monitor/report/life.h"

namespace specdec::monitor {

// Returns the page for `life`. `state` is the path of the state file, which the suggested commands name.
specdec::Page life_page(const Life& life, const std::string& state);

// Returns the command that the last check suggested. Returns "" if it was only `monitor status` or `monitor report`.
std::string advice_of(const Life& life);

// Returns a summary in one line, such as "watched for 12.0 d since …: 2 alarms, …".
std::string life_summary(const Life& life);

}  // namespace specdec::monitor
