// Presents a draft's life to people: the HTML page and the lines of `monitor report`.
#pragma once

#include <string>

#include "base/page/page.h"
#include "monitor/report/life.h"

namespace specdec::monitor {

// `state` is the name of the state file, which the commands to run next need.
specdec::Page life_page(const Life& life, const std::string& state);

// Returns the command that the last check advised, "" if it was only to look at the state.
std::string advice_of(const Life& life);

// Returns the life in one line, such as "watched for 12.0 d since …: 2 alarms, …".
std::string life_summary(const Life& life);

}  // namespace specdec::monitor
