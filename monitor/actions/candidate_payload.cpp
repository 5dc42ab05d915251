#include "monitor/actions/candidate_payload.h"

#include "monitor/actions/channel.h"

namespace specdec::monitor {

Json candidate_payload(const CheckOptions& options, const std::string& digest) {
  const Channel at = channel_of(options.policy.candidate, "--candidate");
  Json payload = {{"store", absolute_path(at.store)},
                  {"candidates", at.name},
                  {"channel", channel_of(options.package, "--package").name},
                  {"digest", digest}};
  if (const auto package = package_in(at.store, digest))
    payload.update(Json{{"draft", absolute_path(package->root)}, {"id", package->manifest.draft.id}});
  return payload;
}

}  // namespace specdec::monitor
