// Formats a forecast as text for people.
#pragma once

#include <string>

#include "base/schema/distill_forecast.h"

namespace specdec::cli {

std::string forecast_text(const ForecastReport& forecast, const std::string& out);

}  // namespace specdec::cli
