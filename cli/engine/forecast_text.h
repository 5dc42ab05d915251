// Formats a forecast (schema specdec.distill_forecast/1) as text for people.
#pragma once

#include <string>

#include "base/json.h"

namespace specdec::cli {

std::string forecast_text(const Json& forecast, const std::string& out);

}  // namespace specdec::cli
