// A client of the server's admin listener (docs/serve.md), which puts drafts on trial, promotes and drops them. Also
// decides what a trial's scores mean.
#pragma once

#include <string>

#include "base/json.h"
#include "net/http_client.h"

namespace specdec::monitor {

class Admin {
 public:
  // `address` is http(s)://host:port or unix:PATH. Throws Error(kUsage) for anything else.
  Admin(const std::string& address, const Secret& key);

  struct Reply {
    int status = 0;
    Json body;            // "specdec.draft/1" if the status is 200, else an error object
    std::string problem;  // the server's own words if the status is not 200
  };
  Reply drafts();                  // sends a GET; throws Error(kNetwork) if the server does not answer
  Reply order(const Json& order);  // sends a POST; throws as drafts() does

  // Orders whatever is missing for this draft to serve all conversations: nothing, promote, or load and promote. `id`
  // is the draft's fingerprint. Returns "", or why it does not serve them yet.
  std::string serve(const std::string& draft, const std::string& id);
  // Takes the draft off its trial if it is on one. Returns "", or why that failed.
  std::string drop(const std::string& id);

 private:
  Reply exchange(const std::string* body);
  net::HttpClient client_;
  std::string url_, socket_;
  Secret key_;
};

// Returns the fingerprint of the "serving" or the "candidate" draft in a reply, "" if there is none.
std::string draft_id_of(const Json& status, const char* which);

// Decides by the scores of a trial: "better" if the lower end of the paired difference is above −margin and the
// candidate is not certainly below the floor; "worse" if the upper end is below 0 or the candidate is certainly below
// the floor; else "" (wait). The server's interval holds at any time it is looked at (a betting confidence sequence
// over conversations, on (1 + difference) / 2).
struct Trial {
  std::string decision, text;
};
Trial judge_trial(const Json& paired, double margin, double floor);

}  // namespace specdec::monitor
