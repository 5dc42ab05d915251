// Parts of URLs as libcurl parses them. Only for net/.
#pragma once

#include <curl/curl.h>

#include <string>

namespace specdec::net {

std::string lower(std::string text);  // ASCII
// In lower case, with the scheme's port as the default; "" if it is not a URL.
std::string part_of(const std::string& url, CURLUPart part);

}  // namespace specdec::net
