"""What alert rules have to tell, brought to Alertmanager."""
