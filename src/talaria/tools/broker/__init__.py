"""The credential broker: lets commands use the person's logins and keys without ever holding them.

Commands reach it through the egress proxy of their sandbox. Outside, the broker asks the person, adds the credential or
signs, and passes bytes on: to fetch from and push to the remotes of the repository (over https and ssh), to sign
commits, and to use `gh` on one repository. See docs/adr/0044.
"""
