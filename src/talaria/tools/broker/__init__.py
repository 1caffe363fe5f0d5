"""The credential broker: what commands do with the person's logins and keys without ever holding them.

Commands ask over the egress proxy of their sandbox. Out here the broker asks the person, adds the credential or signs,
and passes bytes on: to fetch from and push to the remotes of the repository (by https and ssh), to sign commits, and to
use `gh` on one repository. See docs/adr/0044.
"""
